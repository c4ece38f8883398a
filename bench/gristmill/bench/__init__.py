"""`gristmill bench`: run one load through several batch policies on one engine and compare them."""

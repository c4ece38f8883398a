"""`gristmill tune`: find engine settings and the in-flight limit for a load by short runs."""

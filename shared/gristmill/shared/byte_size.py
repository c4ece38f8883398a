"""Write numbers of bytes for people."""

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def in_words(num_bytes: int) -> str:
    """Return a number of bytes in its largest unit: `512 bytes`, `4.2 MiB`, `8 GiB`."""
    size, unit = float(num_bytes), "bytes"
    for larger in _UNITS:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.1f}".removesuffix(".0") + f" {unit}"

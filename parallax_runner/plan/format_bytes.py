"""Bytes for people."""


def format_bytes(number: int) -> str:
    """In powers of 1000, three significant digits: «4.70 MB»."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"

"""Formats a number of bytes as text."""


def format_bytes(number: int) -> str:
    """Formats bytes in powers of 1000 with three significant digits, for example «4.7 MB»."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"

SMALL = (0,)

"""What an op of the update does where a variable's rows are: the rules that planning and rewriting share."""

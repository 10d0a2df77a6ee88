"""What is written and read: files that are whole or not there, text without passwords. Imports no other stage."""

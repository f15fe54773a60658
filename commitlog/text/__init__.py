"""What people read and write: lines, quantities, tables, files of text."""

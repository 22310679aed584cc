"""What scripts share: cells that resume, tables, published numbers, networks, and the rivals they are compared with."""

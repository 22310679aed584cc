"""What is changed in a traced graph before it is planned; the bits of its results are not."""

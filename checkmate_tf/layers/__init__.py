"""The papers' layer level: graphs that are read from a Keras model without tracing it, and what their layers cost."""

"""Programs in the manner of Keras' guides, trained by plain Keras and by several workers."""

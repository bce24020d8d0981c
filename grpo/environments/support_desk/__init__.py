"""support_desk."""

"""Each site tunes an SVM of its own; later sites start from a private release."""

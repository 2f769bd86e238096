"""Sites tune an SVM together, with private votes."""

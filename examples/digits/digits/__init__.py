"""Tune an SVM on digits split over clients."""

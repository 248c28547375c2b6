"""Evaluation: samples while a model trains, a report of its run, its scores on texts and on known tasks."""

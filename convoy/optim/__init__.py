"""Optimizers, EMA, and the storage of their state.

Learning-rate schedules are pure functions of the update: they are in planning/learning_rate.py.
"""

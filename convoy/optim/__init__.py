"""Optimizers, EMA, and the storage of their state.

Learning-rate schedules are pure functions of the update: they are in plan/learning_rate.py.
"""

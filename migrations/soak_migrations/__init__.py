"""Alembic migrations of the soak database."""

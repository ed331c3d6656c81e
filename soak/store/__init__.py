"""Where a run is kept: SQLAlchemy models, migrations, one writer."""

"""Alembic's entry: migrates over the connection that it is handed, inside that connection's transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()

"""`soak doctor`: what a run needs, looked at before it starts.

    examine (parent) <- look     a child: folder, database, port, compiler, kernel log, each card's settings
                     <- workout  a child a card: torch, Triton, compiles for it, loads it for three seconds
                     <- sampler  the run's own telemetry
      -> Facts -> checks.CHECKS -> Lines (ok, warn, fail, skip; what to do) -> soak.cli.doctor

Whatever may hang runs in a child under a deadline; the parent imports neither torch nor a driver's library.
Judging is pure: a line follows from the facts alone.
"""

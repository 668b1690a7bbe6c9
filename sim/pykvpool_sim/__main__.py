"""``python -m pykvpool_sim``: the simulator's command, where the package is not installed."""

from pykvpool_sim.command.main import sim

if __name__ == "__main__":
    sim(prog_name="pykvpool sim")

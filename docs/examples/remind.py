"""Remind a customer in three days, unless they act first."""

from shardq import App

app = App()


@app.task(queue="reminders", key="cart-{cart}", delay="3d")
def remind(cart: int, email: str) -> None:
    print(f"to {email}: your cart {cart} is waiting")


def left(cart: int, email: str) -> None:
    """Somebody has left with a full cart; the last time counts."""
    remind.using(on_conflict="replace").put(cart, email)


def paid(cart: int) -> None:
    app.cancel(f"cart-{cart}")


def asked_for_later(cart: int) -> None:
    app.move(f"cart-{cart}", delay="7d")

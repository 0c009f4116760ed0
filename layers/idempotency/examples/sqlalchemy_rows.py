"""SQLAlchemy: the key of a message is recorded in the transaction of your session.

Run it: DATABASE_URL=postgresql://… python sqlalchemy_rows.py

    True False
    1
"""

# shown from here
import json
import os

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from grantwire_idempotency import InboxGuard, Message

engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))
inbox = InboxGuard(name="stock")


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def handle(message: Message) -> bool:
    """Return whether the message was new."""
    with Session(engine) as session, session.begin():
        if not inbox.record(session, message):  # or a Connection: `with engine.begin() as connection`
            return False
        session.add(Item(name=message.payload["item"]))
    return True


# shown to here


if __name__ == "__main__":
    Base.metadata.create_all(engine)
    message = Message("m-1", body=json.dumps({"item": "pen"}))
    print(handle(message), handle(message))
    with Session(engine) as session:
        print(session.scalar(select(func.count()).select_from(Item)))
    engine.dispose()

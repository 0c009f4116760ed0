/** For each problem of the status: its name, what still works, what to do, and where. */
export const GUIDANCE = {
  NATS_UNAVAILABLE: {
    title: "NATS is away",
    works:
      "Grants, revokes and reads work. Events wait in the outbox and are published in order when NATS is back. " +
      "Notifications that are already recorded are still sent.",
    todo: "Check the NATS server and the network between it and the workers. No redrive is necessary.",
  },
  SCHEMA_DIFFERS: {
    title: "The database has another schema version than the code",
    works: "Most functions work, because a new schema is compatible with the code before it.",
    todo: "Invoke migrate_database, which applies the schema of this deployment.",
  },
  WORKER_LATE: {
    title: "Workers have not run",
    works: "Changes are accepted. What these workers do waits, and is not lost.",
    todo:
      "Check that the schedule is enabled and that the function starts. On a new stack, each worker reports after " +
      "its first step, within a minute.",
    link: ["#workers", "See the workers"],
  },
  WORKER_FAILED: {
    title: "Workers fail",
    works: "Changes are accepted. What these workers do waits, and is not lost.",
    todo: "Read the error in the table of workers, then the log of the function.",
    link: ["#workers", "See the workers"],
  },
  EVENTS_OLD: {
    title: "Events wait too long",
    works: "Changes are accepted, and the events keep their order.",
    todo: "If NATS is away, that is the cause. Otherwise check relay_outbox in the table of workers.",
    link: ["#workers", "See the workers"],
  },
  CONSUMER_LAG: {
    title: "The inbox is behind the stream",
    works: "Changes are accepted and published. Notifications and the read model are late.",
    todo: "Check bridge_events in the table of workers. If it runs, wait until the lag is gone.",
    link: ["#workers", "See the workers"],
  },
  DEAD_LETTERS: {
    title: "Dead letters wait for a decision",
    works:
      "Other entitlements are not affected. Later events of the same entitlement wait behind a dead letter of the " +
      "outbox.",
    todo: "Look at the groups, remove the cause, then redrive. Discard only what must never be delivered.",
    link: ["#/dead-letters", "Show the groups"],
  },
  LEASES_EXPIRED: {
    title: "Workers lost their leases",
    works: "Another worker takes the work over; nothing is done twice.",
    todo: "If it stays, a worker is killed again and again: read the logs of the workers.",
    link: ["#workers", "See the workers"],
  },
  READ_MODEL_DIFFERS: {
    title: "The read model differs from the record",
    works: "Entitlements, checks and notifications are right. Summaries may be wrong.",
    todo: "Verify the read model, and rebuild it if the difference stays.",
    link: ["#/commands", "Verify or rebuild"],
  },
  PARTITIONS_MISSING: {
    title: "The audit needs partitions",
    works: "Everything works. Rows without a month of their own go to the default partition.",
    todo: "Check sweep_retention, which creates the partitions.",
    link: ["#workers", "See the workers"],
  },
  COMMANDS_FAILED: {
    title: "Commands of operators failed",
    works: "Everything else works. Repeating a command is harmless.",
    todo: "Read why, and send them again.",
    link: ["#/commands?status=FAILED", "Show failed commands"],
  },
};

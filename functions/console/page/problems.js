/** The name of each problem of the status. What still works and what to do are in the status. */
export const TITLES = {
  NATS_UNAVAILABLE: "NATS is away",
  STREAM_MISSING: "A stream or a consumer is missing",
  RECEIVER_UNAVAILABLE: "The receiver is away",
  SCHEMA_DIFFERS: "The database has another schema version than the code",
  WORKER_LATE: "Workers have not run",
  WORKER_FAILED: "Workers fail",
  WORKER_DEGRADED: "Workers wait for something that they need",
  TRANSACTION_OPEN: "A transaction holds back changes",
  TIMES_OVERDUE: "Starts and ends are overdue",
  EVENTS_OLD: "Events wait too long",
  EVENTS_UNCONFIRMED: "Published events have not arrived",
  NOTIFICATIONS_OVERDUE: "Notifications are overdue",
  EVENTS_TOO_OLD: "Lost events need a decision",
  STREAM_HISTORY_LOST: "The stream lost a part of its history",
  EVENTS_LOST: "The stream lost events",
  EVENTS_UNCHECKED: "Published events are not checked",
  CONSUMER_LAG: "The inbox is behind the stream",
  LEASES_EXPIRED: "Workers lost their leases",
  DEAD_LETTERS: "Dead letters wait for a decision",
  READ_MODEL_DIFFERS: "The read model differs from the record",
  PARTITIONS_MISSING: "The audit needs partitions",
  COMMANDS_FAILED: "Commands of operators failed",
  CLIENT_EXPIRES: "Clients expire soon",
};

const WORKERS = ["#workers", "See the workers"];

/** Where the console shows more about a problem. */
export const LINKS = {
  WORKER_LATE: WORKERS,
  WORKER_FAILED: WORKERS,
  WORKER_DEGRADED: WORKERS,
  EVENTS_OLD: WORKERS,
  EVENTS_UNCONFIRMED: WORKERS,
  NOTIFICATIONS_OVERDUE: WORKERS,
  CONSUMER_LAG: WORKERS,
  PARTITIONS_MISSING: WORKERS,
  DEAD_LETTERS: ["#/dead-letters", "Show the groups"],
  READ_MODEL_DIFFERS: ["#/commands", "Verify or rebuild"],
  COMMANDS_FAILED: ["#/commands?status=FAILED", "Show failed commands"],
  CLIENT_EXPIRES: ["#/clients", "Show the clients"],
};

/** Where a change is that has not arrived. */
export const STAGES = {
  transactions: "in a transaction that has not ended",
  times: "a start or an end is due and not recorded",
  outbox: "its event is not published",
  stream: "its event is published and not in the inbox",
  notifications: "its notification is not sent",
};

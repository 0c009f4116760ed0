"""Execute the commands of operators in batches, and take one sample of the status a minute."""

from grantwire.wiring.workers.handler import WorkerHandler
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsRuntime

handler = WorkerHandler("run_operator_commands", OperatorCommandsRuntime.build)

"""A supervisor in a separate process, for tests that send it signals: arguments in, JSON out."""

import json
import sys

from convoy.launch.supervisor import LaunchOptions, run_workers
from convoy.planning.topology import TopologyPlan

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    outcome = run_workers(
        TopologyPlan(hosts=1, instances=1, replicas=request["replicas"], stages=request["stages"]),
        request["target"],
        request["payload"],
        threads=1,
        options=LaunchOptions(**request["limits"]),
    )
    print(json.dumps({"code": outcome.code, "lines": outcome.describe()}))
    sys.exit(outcome.code)

"""A supervisor in a process of its own, for tests that send it signals: arguments in, JSON out."""

import json
import sys

from convoy.launch.supervisor import LaunchOptions, run_workers
from convoy.plan.topology import TopologyPlan

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    outcome = run_workers(
        TopologyPlan(hosts=1, instances=1, replicas=asked["replicas"], stages=asked["stages"]),
        asked["target"],
        asked["payload"],
        threads=1,
        options=LaunchOptions(**asked["limits"]),
    )
    print(json.dumps({"code": outcome.code, "lines": outcome.describe()}))
    sys.exit(outcome.code)

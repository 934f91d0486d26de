// The state of a run for Prometheus.
#ifndef TOOLS_RUN_RUN_METRICS_H
#define TOOLS_RUN_RUN_METRICS_H

#include "shared/base/memory.h"
#include "tools/run/run_status.h"

// Appends the counters of the run and of each replica as OpenMetrics text, which node_exporter's textfile collector
// reads as well. What is not known yet is left out.
void run_metrics(const struct run_status *run_status, double now, struct buf *out);

#endif

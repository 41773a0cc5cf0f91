/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_graph.h: decode steps whose products, or products and attention,
 * are captured as CUDA graphs.
 *
 *   pieces   begin | graph: QKV | attend | graph: O .. next QKV | attend | .. | graph: O .. head | end
 *   whole    begin, start, replay | graph: all of it | end
 */
#ifndef CLIFF_CUDA_GRAPH_H
#define CLIFF_CUDA_GRAPH_H

#include "cliff_engine.h"

typedef struct cliff_cuda_graphs cliff_cuda_graphs;

rkv_status cliff_cuda_graphs_create(cliff_graphs kind, const cliff_shape *shape, cliff_engine *engine,
                                    rkv_cache *cache, cliff_cuda_graphs **out);
void cliff_cuda_graphs_destroy(cliff_cuda_graphs *g);
/* What a step does after its begin and before its end; captures where it must.
 * Adds the host's time for the launches of graphs. */
rkv_status cliff_cuda_graphs_step(cliff_cuda_graphs *g, int64_t *launch_host_ns);

#endif

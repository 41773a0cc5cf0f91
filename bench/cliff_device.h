/* SPDX-License-Identifier: MIT
 *
 * cliff_device.h: the executor of a synthetic step.
 */
#ifndef CLIFF_DEVICE_H
#define CLIFF_DEVICE_H

#include "cliff_world.h"

/* With kernels that do nothing, and bandwidths divided by CLIFF_SCALE. */
rkv_status cliff_device_create(const cliff_machine *machine, rkvi_device **out);

#endif

/* SPDX-License-Identifier: MIT
 * In place of the toolkit's: see tests/emu/emu_cuda.hpp. */
#include "emu_cuda.hpp"

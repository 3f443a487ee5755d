// DEVICES: how tensors on GPUs are captured, for the operators.
#ifndef CKPTD_CLIENT_SRC_DEVICE_REPORT_H_
#define CKPTD_CLIENT_SRC_DEVICE_REPORT_H_

#include "client/src/state.h"

namespace ckptd {

// False: no tensor is on a GPU. With the mutex held.
[[nodiscard]] bool DescribeDevices(const State& state, DevicesMessage* out);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_DEVICE_REPORT_H_

#include "client/src/device_report.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ckptd {
namespace {

uint64_t BytesOn(const Registration& registration, int16_t lane) {
  uint64_t bytes = 0;
  for (uint32_t tensor : registration.shape->order) {
    if (registration.devices.lane(tensor) == lane) bytes += registration.shape->tensors[tensor].bytes;
  }
  return bytes;
}

void DescribePinning(const State& state, DevicesMessage* out) {
  out->longest_step_ns = state.pin_watch.longest_ns();
  if (state.attachment == nullptr) return;
  for (const auto& slot : state.attachment->slots) {
    if (slot == nullptr) continue;
    out->pin_ns += slot->pin_ns;
    if (slot->pinned != nullptr) out->pinned_bytes += slot->mapping.size();
    if (!slot->pin_error.empty()) snprintf(out->pin_error, sizeof out->pin_error, "%s", slot->pin_error.c_str());
  }
}

}  // namespace

bool DescribeDevices(const State& state, DevicesMessage* out) {
  if (state.registration == nullptr || !state.registration->devices.any()) return false;
  *out = {};
  const auto& lanes = state.registration->devices.lanes;
  const bool pulls = state.Pulls();
  out->device_count = static_cast<uint32_t>(std::min<size_t>(lanes.size(), kMaxDevices));
  for (uint32_t i = 0; i < out->device_count; ++i) {
    DeviceReport& report = out->devices[i];
    memcpy(report.gpu, lanes[i]->device().facts().uuid.data(), sizeof report.gpu);
    report.path = static_cast<uint32_t>(pulls ? CapturePath::kPull : CapturePath::kPush);
    report.bytes = BytesOn(*state.registration, static_cast<int16_t>(i));
    report.samples = state.pull.choice.samples();
    report.push_loss_ppm = state.pull.choice.loss_ppm(PathChoice::Path::kPush);
    report.pull_loss_ppm = state.pull.choice.loss_ppm(PathChoice::Path::kPull);
    snprintf(report.why, sizeof report.why, "%s", state.pull.why.c_str());
  }
  DescribePinning(state, out);
  return true;
}

}  // namespace ckptd

// What can be said of a packet without knowing what came before it: its size, its numbers, its descriptors. Nothing of
// it was checked by anybody. Pure functions.
#ifndef CKPTD_DAEMON_COPIER_REQUESTS_H_
#define CKPTD_DAEMON_COPIER_REQUESTS_H_

#include <cstdint>
#include <cstring>
#include <span>

#include "daemon/copier/outcome.h"
#include "proto/local/copier.h"

namespace ckptd {

// As far as the packet reaches; the rest is zero.
template <typename Message>
Message ReadMessage(std::span<const uint8_t> bytes) {
  Message message = {};
  std::memcpy(&message, bytes.data(), bytes.size() < sizeof message ? bytes.size() : sizeof message);
  return message;
}

// After it every field is within its limits, and `descriptors` is the number that the packet must have had. What
// depends on the requests before is the service's to check.
Outcome CheckRequest(std::span<const uint8_t> bytes, size_t descriptors);

// HOST_DONE has no answer: a packet that is one for whoever reads it first.
[[nodiscard]] bool IsHostDone(std::span<const uint8_t> bytes, size_t descriptors);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_REQUESTS_H_

// Messages of proto/ckptd/v1 in an input.
#ifndef CKPTD_TESTS_FUZZ_WIRE_H_
#define CKPTD_TESTS_FUZZ_WIRE_H_

#include <google/protobuf/message_lite.h>

#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// Protobuf believes a length of up to 50 MB before it looks for the bytes. gRPC gives it no message above its limit,
// and the memory is gone when the message ends early, so this is not counted.
inline bool Parse(std::string_view wire, google::protobuf::MessageLite& message) {
  const Uncounted library;
  return message.ParseFromArray(wire.data(), static_cast<int>(wire.size()));
}

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_WIRE_H_

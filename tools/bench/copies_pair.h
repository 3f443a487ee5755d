// Two agents' transports in this process, each with a loop and a thread of its own, over loopback: one keeps what the
// other has. Offer, Move with its checksums, and what both machines do are the agent's own code (daemon/transport);
// the bytes are read from a file of the region's tmpfs and received into populated memory of another one, as an agent
// does it.
#ifndef CKPTD_TOOLS_BENCH_COPIES_PAIR_H_
#define CKPTD_TOOLS_BENCH_COPIES_PAIR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "daemon/os/mapping.h"
#include "tools/bench/options.h"

namespace ckptd::bench {

// The two files of the tmpfs. Gone with the object.
class CopyMemory {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CopyMemory>> Make(const Options& options, uint64_t bytes);

  [[nodiscard]] File& source() const { return *source_; }
  [[nodiscard]] const Mapping& from() const { return from_; }
  [[nodiscard]] const Mapping& into() const { return into_; }
  // Nothing of `from` is in `into`.
  void Wipe() const;
  [[nodiscard]] bool Same() const;

 private:
  std::unique_ptr<File> source_;
  Mapping from_, into_;
};

enum class BytesBy { kGrpc, kTls, kTcp, kUcx };  // of Move

struct CopiesPairOptions {
  bool certificates = false;  // gRPC by mutual TLS, with an authority made for it; kTls needs them
  BytesBy by = BytesBy::kGrpc;
  uint64_t chunk_bytes = 0;
  uint32_t ranks = 1;  // whose images are sent at once, each a part of the memory and a transfer of its own
};

class CopiesPair {
 public:
  // `memory` outlives it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CopiesPair>> Make(const CopyMemory& memory,
                                                                        const CopiesPairOptions& options);
  virtual ~CopiesPair() = default;
  // All of the images, from the first Send to the last end, every chunk verified by the receiver. Seconds.
  [[nodiscard]] virtual absl::StatusOr<double> Send() = 0;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_COPIES_PAIR_H_

// Several agents of this machine that protect each other's snapshots, as nodes of one cluster on a loopback network of
// this process's own.
#ifndef CKPTD_TOOLS_BENCH_NODES_H_
#define CKPTD_TOOLS_BENCH_NODES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/agent.h"
#include "tools/bench/options.h"

namespace ckptd::bench {

// What moves the copies: peers.bulk, and what it adds to the case's name.
struct Bulk {
  const char* bulk;
  const char* added;
};
inline constexpr Bulk kBulks[] = {{"grpc", ""}, {"tcp", ".tcp"}};

struct Protection {
  std::string scheme;  // of the section [peers]: "copies = 2"
  std::string bulk;    // peers.bulk
};

// All started, one storage for all, onto which nothing is written by itself.
class Nodes {
 public:
  [[nodiscard]] static absl::StatusOr<Nodes> Make(const Options& options, size_t count, const Protection& protection);

  [[nodiscard]] Agent& operator[](size_t node) const { return *agents_[node]; }
  [[nodiscard]] std::vector<std::string> sockets() const;
  // What it had in memory is gone, and an empty one with its name is there.
  [[nodiscard]] absl::Status Replace(size_t node) const;

 private:
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_NODES_H_

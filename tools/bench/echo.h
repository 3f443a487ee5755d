// The least that a request and its answer cost here: two sockets and a thread that answers.
#ifndef CKPTD_TOOLS_BENCH_ECHO_H_
#define CKPTD_TOOLS_BENCH_ECHO_H_

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd::bench {

// By one thread.
class Echo {
 public:
  // Requests and answers of so many bytes, at least one each.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Echo>> Make(size_t request_bytes, size_t answer_bytes);
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
  ~Echo();

  [[nodiscard]] absl::Status RoundTrip();

 private:
  Echo(size_t request_bytes, size_t answer_bytes) : request_(request_bytes, 'q'), answer_(answer_bytes, 'a') {}

  std::string request_;
  std::string answer_;
  UniqueFd socket_;
  std::thread server_;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_ECHO_H_

// Copies host memory into a slot.
//
// Bytes go in by pwritev: a source that was freed answers EFAULT instead of killing the trainer, and one call takes up
// to kMaxParts tensors.
#ifndef CKPTD_CLIENT_SRC_PIECE_COPIER_H_
#define CKPTD_CLIENT_SRC_PIECE_COPIER_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <vector>

#include "client/src/layout.h"

namespace ckptd {

class PieceCopier {
 public:
  PieceCopier(const std::vector<Piece>& pieces, int fd) : pieces_(pieces), fd_(fd) {}

  // Copies what host pieces put into [at, end). Ranges come in order. 0 or an errno, and where.
  [[nodiscard]] int CopyUntil(uint64_t end, uint64_t* failed_at);

 private:
  static constexpr size_t kMaxParts = 256;

  int Gather(uint64_t end);

  const std::vector<Piece>& pieces_;
  const int fd_;
  size_t next_ = 0;
  uint64_t at_ = 0;
  std::array<iovec, kMaxParts> parts_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PIECE_COPIER_H_

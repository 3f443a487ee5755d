// Copies host memory into a slot.
//
// A tensor's memory may be gone: the trainer freed or moved it without a word. The kernel copies it, which answers
// EFAULT then instead of killing the trainer, up to kMaxParts tensors a call: by process_vm_readv of this process, into
// the mapping of the slot; by pwritev where there is no mapping, where a sandbox forbids the first (EPERM, ENOSYS), for
// memory whose pages the kernel does not lend, such as a driver's (EFAULT, until pwritev says so too), and for slots on
// a tmpfs mounted for huge pages, where it is the faster one: it then writes 2 MiB at a time.
//
// Memory that was promised to stay (CKPT_STAYS), and our own, is read directly, with the checksum in the same pass.
#ifndef CKPTD_CLIENT_SRC_PIECE_COPIER_H_
#define CKPTD_CLIENT_SRC_PIECE_COPIER_H_

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <vector>

#include "client/src/layout.h"

namespace ckptd {

class PieceCopier {
 public:
  // slot: where `fd` is mapped, or null.
  PieceCopier(const std::vector<Piece>& pieces, int fd, char* slot)
      : pieces_(pieces), fd_(fd), slot_(slot), self_(getpid()), may_read_(slot != nullptr && !WritesHugePages(fd)) {}

  // Copies what host pieces put into [at, end). Ranges come in order. 0 or an errno, and where.
  [[nodiscard]] int CopyUntil(uint64_t end, uint64_t* failed_at) { return Copy(end, nullptr, failed_at); }

  // The same with a mapping, and *crc goes on over every byte that the range has then, whoever put it there.
  [[nodiscard]] int CopyAndSum(uint64_t end, uint32_t* crc, uint64_t* failed_at) { return Copy(end, crc, failed_at); }

 private:
  static constexpr size_t kMaxParts = 256;

  static bool WritesHugePages(int fd);

  int Copy(uint64_t end, uint32_t* crc, uint64_t* failed_at);
  void CopyDirectly(const Piece& piece, uint64_t end, uint32_t* crc);
  [[nodiscard]] bool IsDirect(const Piece& piece) const { return piece.stays && slot_ != nullptr; }
  size_t Gather(uint64_t end);
  ssize_t Move(size_t parts);
  void Pass(uint64_t end, uint32_t* crc);

  const std::vector<Piece>& pieces_;
  const int fd_;
  char* const slot_;
  const pid_t self_;
  bool may_read_;  // by process_vm_readv
  size_t next_ = 0;
  uint64_t at_ = 0;
  uint64_t gathered_ = 0;  // bytes
  std::array<iovec, kMaxParts> parts_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PIECE_COPIER_H_

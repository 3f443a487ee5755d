// Owning file descriptors in what trainer and agent share.
#ifndef CKPTD_CLIENT_CORE_WIRE_FDS_H_
#define CKPTD_CLIENT_CORE_WIRE_FDS_H_

namespace ckptd {

// Closes its descriptor. Move only; not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int Release();  // the caller owns it now
  void Reset(int fd = -1);      // keeps errno

 private:
  int fd_ = -1;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_WIRE_FDS_H_

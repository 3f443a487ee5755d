// Trainers whose saves a copier pulls: the real ckptd-copier and libckpt, with the host device in place of a GPU.
#ifndef CKPTD_DAEMON_COPIER_PULL_TEST_UTIL_H_
#define CKPTD_DAEMON_COPIER_PULL_TEST_UTIL_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>

#include "client/src/test_device.h"
#include "client/src/test_image.h"

namespace ckptd {

// The copiers that the agent started, and how they run.
class Copiers {
 public:
  ~Copiers() {
    for (pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  bool Start(UniqueFd* socket, UniqueFd* process) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
    *socket = UniqueFd(ends[0]);
    UniqueFd theirs(ends[1]);
    std::lock_guard lock(mutex_);
    pid_t pid = Spawn(theirs.get());
    if (pid == 0) return false;
    pids_.push_back(pid);
    *process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    return process->valid();
  }

  void Set(const std::string& variable) {
    std::lock_guard lock(mutex_);
    environment_.push_back(variable);
  }
  // Only the next one that is started.
  void SetOnce(const std::string& variable) {
    std::lock_guard lock(mutex_);
    once_.push_back(variable);
  }
  void Signal(int signal) {
    std::lock_guard lock(mutex_);
    kill(pids_.back(), signal);
  }
  [[nodiscard]] size_t started() {
    std::lock_guard lock(mutex_);
    return pids_.size();
  }

 private:
  static std::vector<char*> Pointers(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    pointers.reserve(words.size() + 1);
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  // 0 when it could not be started.
  pid_t Spawn(int socket) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, socket, 3);
    std::vector<std::string> words = {CKPTD_COPIER, "--socket", "3", "--region", "0"};
    std::vector<std::string> environment = environment_;
    environment.insert(environment.end(), once_.begin(), once_.end());
    once_.clear();
    pid_t pid = 0;
    int failed =
        posix_spawn(&pid, CKPTD_COPIER, &actions, nullptr, Pointers(words).data(), Pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    return failed == 0 ? pid : 0;
  }

  std::mutex mutex_;
  std::vector<pid_t> pids_;
  std::vector<std::string> environment_ = {std::string("LD_LIBRARY_PATH=") + CKPTD_FAKECUDA};
  std::vector<std::string> once_;
};

// Chunks of cuMemCreate side by side, as in PyTorch's expandable segments: they outlive their process where another one
// has them open. Goes behind the trainer.
class ShareableMemory {
 public:
  static constexpr uint64_t kChunk = 2 * kMiB;

  explicit ShareableMemory(uint64_t chunks) : bytes_(chunks * kChunk) {
    EXPECT_EQ(cuMemAddressReserve(&base_, bytes_, 0, 0, 0), CUDA_SUCCESS);
    for (uint64_t at = 0; at < bytes_; at += kChunk) MapAt(at);
  }
  ShareableMemory(const ShareableMemory&) = delete;
  ShareableMemory& operator=(const ShareableMemory&) = delete;
  ~ShareableMemory() {
    for (uint64_t at = 0; at < bytes_; at += kChunk) EXPECT_EQ(cuMemUnmap(base_ + at, kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(base_, bytes_), CUDA_SUCCESS);
  }

  // Other memory at the same address, as after empty_cache().
  void ReplaceFirst() const {
    EXPECT_EQ(cuMemUnmap(base_, kChunk), CUDA_SUCCESS);
    MapAt(0);
  }

  // Makes the trainer's tensors anew, all of them here.
  void Place(TestTrainer& trainer, const std::vector<uint64_t>& sizes) const {
    trainer.MakeTensors(sizes);
    uint64_t at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto* place = reinterpret_cast<void*>(base_ + at);
      trainer.data[i] = place;
      trainer.flags[i] = CKPT_DEVICE;
      memcpy(place, trainer.tensors[i].data(), sizes[i]);
      at += (sizes[i] + 511) / 512 * 512;
    }
  }

 private:
  void MapAt(uint64_t at) const {
    CUmemAllocationProp prop = {};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle memory = 0;
    EXPECT_EQ(cuMemCreate(&memory, kChunk, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(base_ + at, kChunk, 0, memory, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
  }

  const uint64_t bytes_;
  CUdeviceptr base_ = 0;
};

class PullTest : public DeviceTest {
 protected:
  PullTest() { gpu_path = CKPT_PULL; }

  void BeforeStart() override {
    agent.start_copier = [this](UniqueFd* socket, UniqueFd* process) { return copiers.Start(socket, process); };
  }

  void RegisterAndPull() {
    Register();
    ASSERT_TRUE(Eventually([&] { return Pulls(); })) << trainer->Info().path_why;
  }

  [[nodiscard]] bool Pulls() const { return trainer->Info().gpu_path == CKPT_PULL; }

  // A copy of `mib` MiB takes the copier about `ms` milliseconds.
  void SlowCopier(uint64_t mib, uint64_t ms) {
    copiers.Set("FAKECUDA_RATE=" + std::to_string(std::max<uint64_t>(1, mib * kMiB / (ms * 1000))));
  }

  // The stream has come to its end.
  [[nodiscard]] bool StreamPasses() {
    return Eventually([&] { return cuStreamQuery(stream) == CUDA_SUCCESS; });
  }

  Copiers copiers;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_PULL_TEST_UTIL_H_

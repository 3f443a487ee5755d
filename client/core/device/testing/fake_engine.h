// Streams and events of the host device: see fake_cuda.h.
#ifndef CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_ENGINE_H_
#define CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace ckptd::fake {

struct FakeStream;

// A point of a stream: everything enqueued up to here.
struct Mark {
  std::shared_ptr<FakeStream> stream;  // null: nothing to wait for
  uint64_t sequence = 0;
};

// Returns a CUresult; not 0 breaks the context.
using Work = std::function<int()>;

struct Op {
  Work work;
  std::vector<Mark> after;
  uint64_t issue = 0;
};

struct FakeStream {
  int context = 0;
  bool blocking = false;  // ordered with the legacy default stream
  std::atomic<bool> capturing{false};
  bool captures_globally = false;
  bool ended = false;
  uint64_t enqueued = 0;
  uint64_t done = 0;
  std::deque<Op> ops;
};

struct FakeEvent {
  Mark mark;
};

// One lock for all of it: a model to test against, not a fast one. Never destroyed: its threads run until the process
// ends.
class Engine {
 public:
  static Engine& Get();

  std::shared_ptr<FakeStream> CreateStream(int context, bool blocking);
  void EndStream(const std::shared_ptr<FakeStream>& stream);
  [[nodiscard]] std::shared_ptr<FakeStream> Legacy(int context);

  // Returns the mark behind it. While the stream is being captured nothing runs.
  Mark Enqueue(const std::shared_ptr<FakeStream>& stream, Work work, std::vector<Mark> after = {});
  [[nodiscard]] Mark Here(const std::shared_ptr<FakeStream>& stream);
  [[nodiscard]] bool Reached(const Mark& mark);
  void Await(const Mark& mark);

  [[nodiscard]] int Broken(int context);
  void Break(int context, int code);
  void Hang(bool on);
  [[nodiscard]] bool Hanging();
  [[nodiscard]] uint64_t streams();

 private:
  Engine();
  void Run(const std::shared_ptr<FakeStream>& stream);
  bool MayStart(const Op& op) const;
  void Start(const std::shared_ptr<FakeStream>& stream);

  std::mutex mutex_;
  std::condition_variable changed_;
  const bool one_queue_;
  bool hanging_ = false;
  uint64_t issued_ = 0;
  uint64_t started_ = 0;
  uint64_t pending_ = 0;  // of all streams
  std::vector<std::shared_ptr<FakeStream>> streams_;
  std::vector<std::shared_ptr<FakeStream>> legacy_;
  std::vector<int> broken_;
};

}  // namespace ckptd::fake

#endif  // CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_ENGINE_H_

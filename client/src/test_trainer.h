// A trainer of the unit tests: a handle, some tensors, and waiting with a limit.
#ifndef CKPTD_CLIENT_SRC_TEST_TRAINER_H_
#define CKPTD_CLIENT_SRC_TEST_TRAINER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/include/ckpt/ckpt.h"
#include "client/src/fake_agent.h"

namespace ckptd {

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kLong = 20'000 * kMs;

// Polls `condition` for up to 20 s.
template <typename Condition>
[[nodiscard]] bool Eventually(Condition condition) {
  for (int i = 0; i < 20'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

class TestTrainer {
 public:
  explicit TestTrainer(const std::string& socket, uint64_t gate_timeout_ns = 0, uint32_t gpu_path = CKPT_PUSH,
                       uint32_t open_flags = 0, uint32_t world = 1) {
    Open(socket, gate_timeout_ns, gpu_path, open_flags, world);
  }
  ~TestTrainer() { Close(0); }

  void Open(const std::string& socket, uint64_t gate_timeout_ns = 0, uint32_t gpu_path = CKPT_PUSH,
            uint32_t open_flags = 0, uint32_t world = 1) {
    ckpt_options options = {};
    options.struct_bytes = sizeof options;
    options.world = world;
    options.every = 10;
    options.job = "job";
    options.socket = socket.c_str();
    options.gate_timeout_ns = gate_timeout_ns;
    options.gpu_path = gpu_path;
    options.flags = open_flags;
    EXPECT_EQ(ckpt_open(&options, &handle), 0) << ckpt_error();
  }

  ckpt_status Close(uint64_t timeout_ns) {
    ckpt* closing = std::exchange(handle, nullptr);
    return closing == nullptr ? 0 : ckpt_close(closing, timeout_ns);
  }

  // Another value every 8 bytes.
  static void Fill(std::vector<char>& tensor, uint64_t* seed) {
    for (size_t at = 0; at < tensor.size(); at += sizeof *seed) {
      *seed = *seed * 6364136223846793005u + 1442695040888963407u;
      uint64_t value = *seed ^ *seed >> 29;
      memcpy(tensor.data() + at, &value, std::min(sizeof value, tensor.size() - at));
    }
  }

  // U8 tensors of these sizes, filled with bytes of `seed`.
  void MakeTensors(const std::vector<uint64_t>& sizes, uint64_t seed = 1) {
    tensors.clear();
    names.clear();
    ends.clear();
    for (size_t i = 0; i < sizes.size(); ++i) {
      tensors.emplace_back(sizes[i]);
      Fill(tensors.back(), &seed);
      names += "t" + std::to_string(i);
      ends.push_back(names.size());
    }
    shapes = sizes;
    dtypes.assign(sizes.size(), CKPT_U8);
    dims.assign(sizes.size(), 1);
    flags.assign(sizes.size(), 0);
    data.clear();
    for (auto& tensor : tensors) data.push_back(tensor.data());
  }

  ckpt_status Register(uint64_t extra_bytes = 0) {
    ckpt_table table = {};
    table.struct_bytes = sizeof table;
    table.count = tensors.size();
    table.names = names.data();
    table.name_ends = ends.data();
    table.dtypes = dtypes.data();
    table.dims = dims.data();
    table.shapes = shapes.data();
    table.data = data.data();
    table.flags = flags.data();
    table.extra_bytes = extra_bytes;
    return ckpt_register(handle, &table);
  }

  [[nodiscard]] ckpt_info_view Info() const {
    ckpt_info_view view = {};
    view.struct_bytes = sizeof view;
    EXPECT_EQ(ckpt_info(handle, &view), 0);
    return view;
  }

  void WaitReady() {
    ASSERT_TRUE(Eventually([&] { return Info().ready != 0; })) << Info().last_sentence;
  }

  ckpt_status Save(uint64_t step, uint32_t save_flags = 0, const std::string& extra = "{}") {
    return ckpt_save(handle, step, extra.data(), extra.size(), data.data(), save_flags);
  }

  [[nodiscard]] ckpt_step_state Poll(uint64_t step) const {
    ckpt_step_state state = {};
    state.struct_bytes = sizeof state;
    EXPECT_EQ(ckpt_poll(handle, step, &state), 0) << ckpt_error();
    return state;
  }

  [[nodiscard]] bool Copied(uint64_t step) const {
    return Eventually([&] { return (Poll(step).flags & CKPT_COPIED) != 0; });
  }

  ckpt* handle = nullptr;
  std::vector<std::vector<char>> tensors;
  std::string names;
  std::vector<uint64_t> ends;
  std::vector<uint64_t> shapes;
  std::vector<uint8_t> dtypes;
  std::vector<uint32_t> dims;
  std::vector<uint8_t> flags;
  std::vector<const void*> data;
};

// A started agent and a registered trainer.
class TrainerTest : public ::testing::Test {
 protected:
  void Start(const std::vector<uint64_t>& sizes) {
    agent.Start();
    trainer = std::make_unique<TestTrainer>(agent.socket());
    Register(sizes);
  }

  void Register(const std::vector<uint64_t>& sizes) {
    trainer->MakeTensors(sizes);
    ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
    trainer->WaitReady();
  }

  FakeAgent agent;
  std::unique_ptr<TestTrainer> trainer;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_TEST_TRAINER_H_

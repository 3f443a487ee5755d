// Packets that a copier would never send.
#ifndef CKPTD_TESTS_CRASH_WRONG_PACKETS_H_
#define CKPTD_TESTS_CRASH_WRONG_PACKETS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace ckptd::harness {

// Of all lengths; every other one begins as a packet does.
std::vector<std::string> Garbage();

// Progress that there is not, done for what is not, and every outcome for what nobody asked. `awaited`: the serial of
// what the agent waits for.
std::vector<std::string> WrongAnswers(uint64_t awaited);

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_CRASH_WRONG_PACKETS_H_

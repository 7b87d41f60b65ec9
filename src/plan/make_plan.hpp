// From a Problem, a Device and Options to a Plan; the route is chosen here and nowhere else.
#pragma once

#include "base/status.hpp"
#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel {

Status make_plan(const Problem& problem, const Device& device, const Options& options, Plan& plan);

// How a policy cuts the batch, as the options ask.
ScheduleShape make_schedule_shape(const Problem& problem, const Options& options, const Policy& policy);

// Schedule, bounds and workspace from plan.backend and plan.policy; also for tests that force a policy.
void complete_plan(const Problem& problem, const Options& options, Plan& plan);

// The part of it that books the schedule's own entries, from plan.bounds.
void book_work_list(Plan& plan);

// Equal for two plans exactly when one's schedule serves the other (up to hash collisions).
std::uint64_t schedule_key(const Problem& problem, const Plan& plan);

}  // namespace flashrel

"""The car; litres, miles and kilometres are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grpo.contrib.worlds.bfcl import Call, failed_calls, run_calls

DOORS = ["driver", "passenger", "rear_left", "rear_right"]
LOCK: Call = ("lockDoors", {"unlock": False, "door": DOORS})
PRESS: Call = ("pressBrakePedal", {"pedalPosition": 1.0})
START: Call = ("startEngine", {"ignitionMode": "START"})


def _car(**more: Any) -> dict[str, Any]:
    """Unlocked, with ten gallons."""
    return {"fuelLevel": 10.0, "batteryVoltage": 12.8, "doorStatus": dict.fromkeys(DOORS, "unlocked"), **more}


def test_the_engine_starts_with_doors_locked_and_the_pedal_on_the_floor():
    """One unlocked door, or half a pedal, is refused; it can be stopped at any time."""
    results, state = run_calls(
        "VehicleControlAPI", _car(),
        START, ("lockDoors", {"unlock": False, "door": DOORS[1:]}), PRESS, START, LOCK, START,
        ("startEngine", {"ignitionMode": "STOP"}), ("pressBrakePedal", {"pedalPosition": 0.5}), START,
        ("releaseBrakePedal", {}), START, ("startEngine", {"ignitionMode": "GO"}),
    )  # fmt: skip
    assert failed_calls(results) == [
        True, False, False, True, False, False, False, False, True, False, True, True,
    ]  # fmt: skip
    assert results[1] == {"lockStatus": "locked", "remainingUnlockedDoors": 1}
    assert results[5] == {"engineState": "running", "fuelLevel": 10.0, "batteryVoltage": 12.8}
    assert results[7] == {"brakePedalStatus": "pressed", "brakePedalForce": 500.0}
    assert (state["engineState"], state["brakePedalStatus"]) == ("stopped", "released")


def test_the_engine_needs_fuel():
    """An empty tank is refused."""
    results, _ = run_calls("VehicleControlAPI", _car(fuelLevel=0.0), LOCK, PRESS, START)
    assert results[2] == {"error": "The fuel tank is empty."}


def test_the_tank_takes_fifty_gallons():
    """13.2 + 36.8 = 50; another drop is too much, and less than nothing cannot be filled in."""
    results, state = run_calls(
        "VehicleControlAPI", _car(fuelLevel=13.2),
        ("fillFuelTank", {"fuelAmount": 36.8}), ("fillFuelTank", {"fuelAmount": 0.1}),
        ("fillFuelTank", {"fuelAmount": -1}), ("displayCarStatus", {"option": "fuel"}),
    )  # fmt: skip
    assert failed_calls(results) == [False, True, True, False]
    assert (results[0], results[3]) == ({"fuelLevel": 50.0}, {"status": {"fuelLevel": 50.0}})
    assert state["fuelLevel"] == 50.0


def test_a_gallon_lasts_twenty_miles():
    """10 · 20 = 200; 38 litres are 38 / 3.78541 = 10.04 gallons, and 10 gallons 37.8541 litres."""
    results, _ = run_calls(
        "VehicleControlAPI", _car(),
        ("estimate_drive_feasibility_by_mileage", {"distance": 200}),
        ("estimate_drive_feasibility_by_mileage", {"distance": 201}),
        ("liter_to_gallon", {"liter": 38}), ("gallon_to_liter", {"gallon": 10}),
    )  # fmt: skip
    assert results[:2] == [{"canDrive": True}, {"canDrive": False}]
    assert round(results[2]["gallon"], 2) == 10.04
    assert results[3]["liter"] == pytest.approx(37.8541, abs=1e-9)  # but for the last bits of a float


@pytest.mark.parametrize(
    ("start", "end", "distance"),
    [
        ("94016", "83214", {"distance": 980.0}),
        ("83214", "94016", {"distance": 980.0}),
        ("94016", "74532", {"distance": 1730.0, "intermediaryCities": ["83214"]}),  # 980 + 750
        ("83214", "83214", {"distance": 0.0}),
        ("94016", "51479", None),
        ("94016", "00000", None),
        ("00000", "00000", None),
    ],
)
def test_routes_go_both_ways_and_through_towns(start: str, end: str, distance: dict[str, Any] | None):
    """From San Francisco to Stonebrook by Rivermist; Autumnville is unreachable."""
    (result,), _ = run_calls("VehicleControlAPI", {}, ("estimate_distance", {"cityA": start, "cityB": end}))
    assert (None if "error" in result else result) == distance


def test_cities_have_zip_codes():
    """Those that the tasks ask for."""
    cities = ("San Francisco", "Oakendale", "Bonn")
    results, _ = run_calls("VehicleControlAPI", {}, *(("get_zipcode_based_on_city", {"city": city}) for city in cities))
    assert [result.get("zipcode") for result in results] == ["94016", "47329", None]


@pytest.mark.parametrize(("rear", "healthy"), [(32.0, True), (35.0, True), (30.0, False), (36.0, False)])
def test_tires_are_healthy_from_32_to_35_psi(rear: float, healthy: bool):
    """Each of them counts."""
    (result,), _ = run_calls("VehicleControlAPI", _car(rearLeftTirePressure=rear), ("check_tire_pressure", {}))
    assert result["tirePressure"]["rearLeftTirePressure"] == rear
    assert result["tirePressure"]["healthy_tire_pressure"] is healthy


def test_cruise_control_needs_a_running_engine_and_a_speed_in_fives():
    """65 miles an hour are 65 · 1.60934 = 104.61 km/h; switching it off keeps the speed."""
    cruise = {"speed": 65, "activate": True, "distanceToNextVehicle": 100}
    results, state = run_calls(
        "VehicleControlAPI", _car(),
        ("setCruiseControl", cruise), LOCK, PRESS, START, ("setCruiseControl", {**cruise, "speed": 63}),
        ("setCruiseControl", {**cruise, "speed": 125}), ("setCruiseControl", cruise), ("get_current_speed", {}),
        ("setCruiseControl", {**cruise, "activate": False}),
    )  # fmt: skip
    assert failed_calls(results) == [True, False, False, False, True, True, False, False, False]
    assert results[6] == {"cruiseStatus": "active", "currentSpeed": 104.61, "distanceToNextVehicle": 100}
    assert (results[7], state["cruiseStatus"]) == ({"currentSpeed": 104.61}, "inactive")


def test_climate_lights_brake_and_navigation_are_set_and_shown():
    """77 °F are 25 °C; wrong modes are refused."""
    results, state = run_calls(
        "VehicleControlAPI", _car(slopeAngle=10.0),
        ("adjustClimateControl", {"temperature": 77, "unit": "fahrenheit", "fanSpeed": 80, "mode": "cool"}),
        ("adjustClimateControl", {"temperature": 77, "unit": "kelvin", "fanSpeed": 80, "mode": "cool"}),
        ("adjustClimateControl", {"temperature": 20, "unit": "celsius", "fanSpeed": 101, "mode": "cool"}),
        ("displayCarStatus", {"option": "climate"}), ("displayCarStatus", {"option": "radio"}),
        ("setHeadlights", {"mode": "auto"}), ("setHeadlights", {"mode": "dim"}),
        ("activateParkingBrake", {"mode": "engage"}), ("activateParkingBrake", {"mode": "pull"}),
        ("lockDoors", {"unlock": True, "door": ["boot"]}), ("find_nearest_tire_shop", {}),
        ("set_navigation", {"destination": "Bonn"}), ("display_log", {"messages": ["a"]}),
        ("get_outside_temperature_from_google", {}), ("get_outside_temperature_from_weather_com", {}),
    )  # fmt: skip
    assert failed_calls(results) == [
        False, True, True, False, True, False, True, False, True, True, False, False, False, False, False,
    ]  # fmt: skip
    assert results[0] == {"currentTemperature": 25.0, "climateMode": "cool", "humidityLevel": 50.0}
    assert results[3]["status"] == {
        "currentACTemperature": 25.0, "fanSpeed": 80, "climateMode": "cool", "humidityLevel": 50.0,
    }  # fmt: skip
    assert results[5] == {"headlightStatus": "on"}
    assert results[7] == {"parkingBrakeStatus": "engaged", "_parkingBrakeForce": 500.0, "_slopeAngle": 10.0}
    assert results[10] == {"shopLocation": "456 Oakwood Avenue, Rivermist, 83214"}
    assert (state["destination"], state["parkingBrakeStatus"]) == ("Bonn", "engaged")
    assert results[13] == results[14] == {"outsideTemperature": 30.0}

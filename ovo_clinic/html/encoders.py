"""The report's section on compared encoders and on preconditioning, where a study has any."""

from ovo_clinic import encoder_tables, heat_maps, preconditioning, token_costs
from ovo_clinic.html.blocks import Block, Drawing, Section, Table, Text
from ovo_clinic.html.material import Material


def sections(material: Material) -> list[Section]:
    """One section, or none where nothing of the kind was measured."""
    found = {name: material.tables[name] for name in encoder_tables.FILES if name in material.tables}
    if not found:
        return []
    blocks: list[Block] = []
    if "token_costs" in found:
        caption = "MACs, speed and memory of the encoders against the number of tokens."
        blocks.append(Drawing.of("token-costs", token_costs.figure(found["token_costs"]), caption))
    if "convergence" in found:
        caption = "Training of plain and preconditioned models: a thin line a seed, a bold one for the mean."
        blocks.append(Drawing.of("convergence", preconditioning.figure(material.comparison), caption))
    if "heat_maps" in found:
        caption = (
            "What image encoders look at, mean over test units. Occlusion: change of the probability when a square of "
            "the image is hidden; attention: of the class token to each patch. Each panel has its own scale."
        )
        blocks.append(Drawing.of("heat-maps", heat_maps.figure(found["heat_maps"]), caption))
    shown = encoder_tables.printable(found)
    blocks += [Table.of(encoder_tables.CAPTIONS[name], frame) for name, frame in shown.items()]
    if "token_costs" in found:
        blocks.append(Text("Measured with random weights and values on the machine that trained, with its other load."))
    return [Section("encoders", "Encoders and preconditioning", blocks)]
